//! A virtual disk as a front end sees it: an extent of a group, requests of any size.
