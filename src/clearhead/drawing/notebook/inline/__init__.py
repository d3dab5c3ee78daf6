"""Static HTML for notebooks, without scripts.

Numbers stand in tables and maps are pictures inside the text, so that they show wherever a saved
notebook is shown, GitHub included. Text keeps the colour that is around it, for dark and light.

markup      elements, which escape what is put into them; tables, and a trace
matrices    maps as PNG: AttentionMatrix, Summary, Seen, and a mask
"""
