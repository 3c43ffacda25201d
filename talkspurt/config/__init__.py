"""The configuration file: read with line numbers, checked against each package's own model, described for people and
editors.
"""
