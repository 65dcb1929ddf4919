"""Builder images: which one it is, what it has, how it is made, found and pushed."""
