//! Our extension area: copy A, journal ring, copy B.
