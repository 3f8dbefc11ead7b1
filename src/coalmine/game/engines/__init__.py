"""Engines run blocks somewhere; they never change what a block gives."""
