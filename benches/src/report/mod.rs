//! A record for people: [`text`] in the forms storage people know, [`html`] with charts.

pub mod html;
pub mod text;
