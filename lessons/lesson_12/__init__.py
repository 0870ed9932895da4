"""The code and the data of lesson 12."""
