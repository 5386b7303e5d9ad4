"""A search: queries to codes, a shortlist, its order, words, confidence."""
