"""The server's doors: streams, one actor for each connected client, and what bounds strangers."""
