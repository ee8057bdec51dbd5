"""Building, splitting and editing of graphs for the interfaces of other packages."""
