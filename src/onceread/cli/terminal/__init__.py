"""What `onceread chat` and `onceread complete` do once their options are read."""
