//! Claims of documents, packages and sources, compared with the project. No test here needs a server: those that do are in
//! `integration/tests/pages/`.

mod api;
mod blocks;
mod claims;
mod code;
mod comments;
mod contributing;
mod figures;
mod licences;
mod links;
mod packaging;
mod prose;
mod recommended;
mod size;
mod timing;
