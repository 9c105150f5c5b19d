"""`onceread doctor`: one small function for each thing that is looked at, and what to do about what it finds."""
