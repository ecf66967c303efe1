"""Session records in the formats of other tools: ATIF, chats, preference pairs."""
