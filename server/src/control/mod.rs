//! Control API: documents, the `Control` trait the daemon implements, HTTP + JSON over a unix socket.
