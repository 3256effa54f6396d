"""One module per family of instructions; importing this package registers all of them."""
