//! What a terminal makes of the bytes that a program prints. Pure.
//!
//! Owns the picture on the screen (`screen`) and the cursor mode (`cursor_mode`). Both are worked
//! out from the bytes, fed in pieces of any size; neither knows where these come from, and nothing
//! is kept of a terminal that nobody asks about.

mod cursor_mode;
mod screen;

pub use cursor_mode::CursorMode;
pub use screen::{Picture, Screen};
