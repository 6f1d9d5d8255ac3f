"""A block's experts: who gets which token, their products, and how evenly they are loaded."""
