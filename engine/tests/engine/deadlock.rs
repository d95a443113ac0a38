//! Waits that can never end: the definition, played through, and the rule by which the engine refuses a request.
//!
//! An owner is one actor: while it waits it releases nothing. So every owner without a wait releases all its holds, the queues are
//! served, and so on until nothing moves. The waits that are left can never end. Leases, time-outs, quarantine and caps play no
//! part; tickets without a waiting request have vanished. The rule follows less than that, and finds all such waits where limits
//! are 1 or unbounded and an owner has one wait at a time.

use std::collections::BTreeSet;

/// The holders and the waiters.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    pub holds: Vec<Hold>,
    pub waits: Vec<Wait>,
}

#[derive(Debug, Clone)]
pub struct Hold {
    pub key: String,
    pub owner: String,
    pub limit: usize,
    pub permits: usize,
}

/// A request, at its places. An older one has a lower number.
#[derive(Debug, Clone)]
pub struct Wait {
    pub id: u64,
    pub owner: String,
    /// Whether it is a MACQUIRE.
    many: bool,
    places: Vec<Place>,
}

#[derive(Debug, Clone)]
struct Place {
    key: String,
    rank: usize,
    limit: usize,
    permits: usize,
}

impl Wait {
    pub fn new(id: u64, owner: &str, many: bool) -> Wait {
        Wait {
            id,
            owner: owner.to_string(),
            many,
            places: Vec::new(),
        }
    }

    /// Gives the request a place at this lock, with `rank` places before it.
    pub fn stand(&mut self, key: &str, rank: usize, (limit, permits): (usize, usize)) {
        self.places.push(Place {
            key: key.to_string(),
            rank,
            limit,
            permits,
        });
    }

    fn rank(&self, key: &str) -> Option<usize> {
        let place = self.places.iter().find(|place| place.key == key);
        place.map(|place| place.rank)
    }

    /// Returns the limit of the request, equal for all of its locks.
    fn limit(&self) -> usize {
        self.places.first().map_or(0, |place| place.limit)
    }

    fn is_before(&self, place: &Place) -> bool {
        self.rank(&place.key).is_some_and(|rank| rank < place.rank)
    }
}

impl Scene {
    /// Returns the other holders of this lock.
    fn others<'s>(&'s self, key: &'s str, owner: &'s str) -> impl Iterator<Item = &'s Hold> {
        self.holds
            .iter()
            .filter(move |hold| hold.key == key && hold.owner != owner)
    }

    fn compatible(&self, place: &Place, owner: &str) -> bool {
        let others = || self.others(&place.key, owner);
        let all = others().map(|hold| hold.permits).sum::<usize>() + place.permits;
        others().next().is_none() || all <= place.limit && others().all(|other| all <= other.limit)
    }

    fn grantable(&self, wait: &Wait) -> bool {
        wait.places.iter().all(|place| {
            let first = !self.waits.iter().any(|other| other.is_before(place));
            first && self.compatible(place, &wait.owner)
        })
    }

    /// Turns a wait into holds.
    fn grant(&mut self, at: usize) {
        let wait = self.waits.remove(at);
        for place in wait.places {
            self.holds
                .retain(|hold| hold.key != place.key || hold.owner != wait.owner);
            self.holds.push(Hold {
                key: place.key,
                owner: wait.owner.clone(),
                limit: place.limit,
                permits: place.permits,
            });
        }
    }

    /// Returns the obstacles of a request by all clauses of the rule except one: owners by their holds, and other requests by
    /// their places.
    fn in_the_way<'s>(
        &'s self,
        wait: &'s Wait,
        left_out: Option<Clause>,
    ) -> (Vec<&'s str>, Vec<&'s Wait>) {
        let (mut owners, mut waits) = (Vec::new(), Vec::new());
        for place in &wait.places {
            let others = self.others(&place.key, &wait.owner);
            let excluding = others.filter(|hold| hold.limit == 1 || place.limit == 1);
            if left_out != Some(Clause::Holders) {
                owners.extend(excluding.map(|hold| hold.owner.as_str()));
            }
            let mut holds = self.holds.iter();
            if holds.any(|hold| hold.key == place.key && hold.owner == wait.owner) {
                // An upgrade stands ahead of the queue.
                continue;
            }
            let mut before: Vec<&Wait> = self.waits.iter().collect();
            before.retain(|other| other.is_before(place));
            before.sort_by_key(|other| other.rank(&place.key));
            if left_out != Some(Clause::Many) {
                waits.extend(before.iter().rfind(|other| other.many));
            }
            if left_out != Some(Clause::Exclusive) && place.limit != 1 {
                waits.extend(before.iter().find(|other| other.limit() == 1));
            }
        }
        (owners, waits)
    }
}

/// A clause of the rule: an obstacle of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// Every holder that excludes it by itself: one of the two limits is 1.
    Holders,
    /// Unless it is an upgrade: the nearest request for many locks before it.
    Many,
    /// If its own limit is not 1: the first request before it whose limit is 1.
    Exclusive,
}

/// Returns true if a request waits for itself, by the rule. A holder gives nothing back before all its requests are granted; a
/// place before another in a queue counts only as that request.
pub fn closes_a_circle(scene: &Scene, id: u64) -> bool {
    closes_a_circle_without(scene, id, None)
}

/// Returns true if a request waits for itself, by the rule without one clause.
pub fn closes_a_circle_without(scene: &Scene, id: u64, left_out: Option<Clause>) -> bool {
    let asked = scene.waits.iter().find(|wait| wait.id == id);
    let asked = asked.expect("the request is in the scene");
    let mut found = BTreeSet::new();
    let mut next = vec![asked];
    while let Some(wait) = next.pop() {
        let (owners, waits) = scene.in_the_way(wait, left_out);
        let of_owners = scene.waits.iter();
        let of_owners = of_owners.filter(|wait| owners.contains(&wait.owner.as_str()));
        next.extend(
            waits
                .into_iter()
                .chain(of_owners)
                .filter(|wait| found.insert(wait.id)),
        );
        if owners.contains(&asked.owner.as_str()) || found.contains(&id) {
            return true;
        }
    }
    false
}

/// Plays a scene until nothing moves. The waits that are left can never end.
pub fn play(mut scene: Scene) -> Scene {
    loop {
        let before = (scene.holds.len(), scene.waits.len());
        let waits = &scene.waits;
        scene
            .holds
            .retain(|hold| waits.iter().any(|wait| wait.owner == hold.owner));
        while let Some(at) = scene.waits.iter().position(|wait| scene.grantable(wait)) {
            scene.grant(at);
        }
        if before == (scene.holds.len(), scene.waits.len()) {
            return scene;
        }
    }
}
