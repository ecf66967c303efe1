"""After training: a team's policies in the formats of Hugging Face and PEFT, with the team that they belong to."""
