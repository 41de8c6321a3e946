//! Who may do what: roles, scopes and freedoms; what is hidden, and what is logged.

mod calls;
mod choosing;
mod logging;
mod scoping;
mod table;
