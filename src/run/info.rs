//! The module's sections of INFO.

use super::caller;
use super::state::STATE;
use crate::ffi::callbacks::info::Report;
use crate::node::time::clock;
use dlock_commands::look::stats;

/// Adds the module's sections.
pub(super) fn report(mut report: Report) {
    let Some(mut state) = STATE.try_borrow_mut() else {
        return;
    };
    state.refresh_settings();
    for section in stats::sections(&state.engine, &caller::census(), clock::read()) {
        // Refused if it was not asked for.
        if report.section(section.name) {
            for field in section.fields {
                report.field(field.name, field.value);
            }
        }
    }
}
