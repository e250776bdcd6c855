//! NBD front end: sans-IO codec and the sessions that run it on a lane.
