"""What every stage uses of a machine: files, processes, HTTP, containers, stores, the terminal."""
