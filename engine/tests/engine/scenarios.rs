//! The conversations in `tests/scenarios`, held with the engine and the model. `DLOCK_WRITE=1` writes the answers that they give
//! into the files.

use crate::responder::EngineSpeaker;
use crate::transcript::{self, Edit};
use dlock_conversations::{is_rewriting, planted, Conversation};

fn check(text: &str) -> Result<(), String> {
    transcript::check(text, EngineSpeaker::new())
}

fn correct(text: &str) -> Result<Vec<Edit>, String> {
    transcript::correct(text, EngineSpeaker::new())
}

#[test]
fn conversations_go_as_written() {
    let all = dlock_conversations::all();
    let (mut corrected, mut wrong) = (Vec::new(), Vec::new());
    for one in &all {
        let held = match is_rewriting() {
            true => correct(&one.text).map(|edits| corrected.push((one, edits))),
            false => check(&one.text),
        };
        wrong.extend(held.err().map(|what| format!("{}, {what}", one.name)));
    }
    wrong.extend(dlock_conversations::write(&corrected));
    assert!(wrong.is_empty(), "\n\n{}\n", wrong.join("\n\n"));
}

#[test]
fn a_true_conversation_passes_and_untrue_ones_do_not() {
    planted::find(check);
}

#[test]
fn untrue_conversations_are_made_true() {
    planted::mend(|text| {
        let edits = correct(text).expect(text);
        transcript::edited(text, &edits)
    });
}

/// A true conversation stays as it is, byte for byte.
#[test]
fn true_conversations_need_no_edit() {
    let all = dlock_conversations::all();
    for Conversation { name, text, .. } in all.iter().filter(|one| check(&one.text).is_ok()) {
        assert_eq!(correct(text), Ok(Vec::new()), "{name}");
        assert_eq!(transcript::edited(text, &[]), *text, "{name}");
    }
}
