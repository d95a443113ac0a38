//! Tickets are served in the order in which they were taken.

use std::collections::HashMap;

use crate::history::{Micros, Round, Ticket, SECOND};

/// An owner that stopped asking within this time of another's turn may have been next.
const SLACK: Micros = SECOND;

/// Counts the tickets that existed when another came, and were served after it, or not at all though their owners still asked.
/// Tickets that lived through a fault that can lose places are ignored.
pub fn overtaken(tickets: &[Ticket], rounds: &[Round]) -> usize {
    let mut locks: HashMap<&str, Vec<&Ticket>> = HashMap::new();
    for ticket in tickets {
        let safe = rounds.iter().filter(|round| round.lossy);
        let mut safe = safe.map(|round| ticket.until < round.from || ticket.asked > round.calm);
        if safe.all(|safe| safe) {
            locks.entry(&ticket.lock).or_default().push(ticket);
        }
    }
    let of_one = |tickets: &Vec<&Ticket>| {
        let by_one = |first: &&&Ticket| tickets.iter().any(|second| is_before(second, first));
        tickets.iter().filter(by_one).count()
    };
    locks.values().map(of_one).sum()
}

/// Returns true if `second` was served before `first`, though `first` had its place when `second` asked.
fn is_before(second: &Ticket, first: &Ticket) -> bool {
    let Some(served) = second.token else {
        return false;
    };
    let came_later = second.asked > first.placed;
    let served_first = match first.token {
        Some(token) => served < token,
        None => second.until + SLACK < first.until,
    };
    came_later && served_first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::planted::round;

    fn ticket(asked: u64, until: u64, token: Option<u64>) -> Ticket {
        Ticket {
            lock: "k".into(),
            owner: asked.to_string(),
            asked: asked * SECOND,
            placed: asked * SECOND + 1,
            until: until * SECOND,
            token,
        }
    }

    #[test]
    fn the_order_of_arrival_is_right() {
        let tickets = [ticket(0, 10, Some(7)), ticket(1, 11, Some(8))];
        assert_eq!(overtaken(&tickets, &[]), 0);
    }

    #[test]
    fn who_is_served_after_a_later_one_is_found() {
        let tickets = [ticket(0, 12, Some(8)), ticket(1, 11, Some(7))];
        assert_eq!(overtaken(&tickets, &[]), 1);
    }

    #[test]
    fn who_asks_in_vain_while_a_later_one_is_served_is_found() {
        let tickets = [ticket(0, 20, None), ticket(1, 11, Some(7))];
        assert_eq!(overtaken(&tickets, &[]), 1);
    }

    #[test]
    fn who_had_left_is_not_overtaken() {
        let tickets = [ticket(0, 5, None), ticket(1, 11, Some(7))];
        assert_eq!(overtaken(&tickets, &[]), 0);
    }

    #[test]
    fn requests_that_were_under_way_together_have_no_order() {
        let mut first = ticket(0, 12, Some(8));
        first.placed = 3 * SECOND;
        assert_eq!(overtaken(&[first, ticket(1, 11, Some(7))], &[]), 0);
    }

    #[test]
    fn only_a_fault_that_loses_places_excuses() {
        let tickets = [ticket(0, 12, Some(8)), ticket(1, 11, Some(7))];
        let mut fault = round(5, 6);
        assert_eq!(overtaken(&tickets, &[fault.clone()]), 0);
        fault.lossy = false;
        assert_eq!(overtaken(&tickets, &[fault]), 1);
    }
}
