"""jambonz's `listen` verb."""
