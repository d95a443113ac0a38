//! The conversations in `tests/scenarios`, held with the engine and the model.

use crate::responder::EngineSpeaker;
use crate::transcript;
use dlock_conversations::planted;

fn check(text: &str) -> Result<(), String> {
    transcript::check(text, EngineSpeaker::new())
}

#[test]
fn conversations_go_as_written() {
    let all = dlock_conversations::all();
    let told = |(name, text): &(String, String)| {
        let wrong = check(text).err();
        wrong.map(|wrong| format!("{name}, {wrong}"))
    };
    let wrong: Vec<String> = all.iter().filter_map(told).collect();
    assert!(wrong.is_empty(), "\n\n{}\n", wrong.join("\n\n"));
}

#[test]
fn a_true_conversation_passes_and_untrue_ones_do_not() {
    planted::find(check);
}
