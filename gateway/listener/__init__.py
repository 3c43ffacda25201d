"""The sockets by which calls come in, from the first byte to a media leg. Decides who may connect; knows no turns."""
