"""Session records in the formats of other tools: ATIF, OpenTelemetry, chats, preference pairs."""
