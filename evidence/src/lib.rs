//! Parts of several of these programs. What their clients believed, and when and where results were made, is in
//! `integration/harness/src/` (`belief`, `Made`), where tests use it too.
//!
//! | file | contents |
//! |---|---|
//! | `lanes.rs` | cases that are played several at a time |
//! | `group.rs` | servers that are killed, stopped and cut off: behind doors, and under Sentinels |
//! | `page.rs` | pages of results, whose words are files |
//! | `setting.rs` | a primary and two replicas under a setting against lost grants |

pub mod group;
pub mod lanes;
pub mod page;
pub mod setting;
