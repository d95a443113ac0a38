//! Which waits could never end: the definition, played through.
//!
//! An owner is one actor: while it waits for anything it gives nothing back. So every owner that waits for nothing gives
//! back all it holds, the queues are served, and so on until nothing moves. The waits that are left could never end.
//! Leases, time-outs, quarantine and caps play no part; tickets that nobody waits on have vanished.

use std::collections::BTreeSet;

/// Who holds and who waits.
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
}

/// A request, at its places. The older has the lower number.
#[derive(Debug, Clone)]
pub struct Wait {
    pub id: u64,
    owner: String,
    places: Vec<Place>,
}

#[derive(Debug, Clone)]
struct Place {
    key: String,
    rank: usize,
    limit: usize,
}

impl Wait {
    pub fn new(id: u64, owner: &str) -> Wait {
        Wait {
            id,
            owner: owner.to_string(),
            places: Vec::new(),
        }
    }

    /// It waits at this lock with so many places before it.
    pub fn stand(&mut self, key: &str, rank: usize, limit: usize) {
        let key = key.to_string();
        self.places.push(Place { key, rank, limit });
    }

    fn rank(&self, key: &str) -> Option<usize> {
        let place = self.places.iter().find(|place| place.key == key);
        place.map(|place| place.rank)
    }

    fn is_before(&self, place: &Place) -> bool {
        self.rank(&place.key).is_some_and(|rank| rank < place.rank)
    }
}

impl Scene {
    /// Those who hold this lock beside the owner.
    fn others<'s>(&'s self, key: &'s str, owner: &'s str) -> impl Iterator<Item = &'s Hold> {
        self.holds
            .iter()
            .filter(move |hold| hold.key == key && hold.owner != owner)
    }

    fn compatible(&self, place: &Place, owner: &str) -> bool {
        let others = || self.others(&place.key, owner);
        let count = others().count() + 1;
        count == 1 || count <= place.limit && others().all(|other| count <= other.limit)
    }

    fn grantable(&self, wait: &Wait) -> bool {
        wait.places.iter().all(|place| {
            let first = !self.waits.iter().any(|other| other.is_before(place));
            first && self.compatible(place, &wait.owner)
        })
    }

    /// It holds from now on what it has waited for.
    fn grant(&mut self, at: usize) {
        let wait = self.waits.remove(at);
        for Place { key, limit, .. } in wait.places {
            self.holds
                .retain(|hold| hold.key != key || hold.owner != wait.owner);
            let owner = wait.owner.clone();
            self.holds.push(Hold { key, owner, limit });
        }
    }

    /// The waits that keep this one from being granted: of each lock those of the owners whose holds are in its way, or else
    /// the one that heads the queue.
    fn blockers(&self, wait: &Wait) -> Vec<&Wait> {
        let mut blockers = Vec::new();
        for place in &wait.places {
            if self.compatible(place, &wait.owner) {
                let before = self.waits.iter().filter(|other| other.is_before(place));
                blockers.extend(before.min_by_key(|other| other.rank(&place.key)));
            } else {
                let holds = |other: &&Wait| {
                    let mut others = self.others(&place.key, &wait.owner);
                    others.any(|hold| hold.owner == other.owner)
                };
                blockers.extend(self.waits.iter().filter(holds));
            }
        }
        blockers
    }

    /// The waits that this one depends on, and those that they depend on, and so on.
    fn depends_on(&self, wait: &Wait) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        let mut next = vec![wait];
        while let Some(wait) = next.pop() {
            let blockers = self.blockers(wait).into_iter();
            next.extend(blockers.filter(|blocker| found.insert(blocker.id)));
        }
        found
    }
}

/// What is left when nothing moves any more: the waits that could never end.
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

/// A wait that has to be ended so that others can: the youngest of those that depend on each other and on nothing else.
pub fn victim(scene: Scene) -> Option<u64> {
    let left = play(scene);
    let depends: Vec<(u64, BTreeSet<u64>)> = left
        .waits
        .iter()
        .map(|wait| (wait.id, left.depends_on(wait)))
        .collect();
    let on = |id: &u64| {
        depends
            .iter()
            .find(|(other, _)| other == id)
            .map(|(_, on)| on)
    };
    let knot = |(id, its): &&(u64, BTreeSet<u64>)| {
        its.iter()
            .all(|other| on(other).is_some_and(|back| back.contains(id)))
    };
    depends
        .iter()
        .find(knot)
        .and_then(|(_, knot)| knot.last().copied())
}
