"""The paper's tables beside ours: counted on the meta device in seconds, measured where asked."""
