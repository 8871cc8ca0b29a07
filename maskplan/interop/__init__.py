"""Other projects' formats, a module each: what they leave out is asked for, never guessed."""
