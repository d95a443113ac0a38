//! A list in order of arrival that can say how many stand before a given one.
//!
//! The standard library's ordered map has no rank: POSITION would count through the queue. Those that count in their nodes move
//! a whole node for one that leaves, and give a queue of one, the usual one, a node of its own. This takes 24 bytes until
//! somebody comes, and one allocation then.

// Positions are found right before, in the list itself.
#![allow(clippy::indexing_slicing)]

use std::collections::VecDeque;

/// Members a chunk: few enough that to take one out moves no more than some lines of memory, and enough that a rank among
/// 100,000 adds up no more than a thousand lengths.
const CHUNK: usize = 128;

/// Members that are kept in a plain list. Nearly every queue is as short, and there may be very many of them: chunks would take
/// two hundred bytes more.
const FEW: usize = 8;

/// A value and its number.
type Member<N, T> = (N, Box<T>);

/// Values in the order of their numbers.
#[derive(Debug, Clone)]
pub struct Roster<N, T>(Form<N, T>);

#[derive(Debug, Clone)]
enum Form<N, T> {
    Few(Vec<Member<N, T>>),
    Many(Box<Chunks<N, T>>),
}

impl<N, T> Default for Roster<N, T> {
    fn default() -> Self {
        Roster(Form::Few(Vec::new()))
    }
}

impl<N: Copy + Ord, T> Roster<N, T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Few(few) => few.len(),
            Form::Many(many) => many.len(),
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first, with its number.
    pub fn front(&self) -> Option<(N, &T)> {
        match &self.0 {
            Form::Few(few) => few.first().map(|(number, value)| (*number, &**value)),
            Form::Many(many) => many.front(),
        }
    }

    /// All in order.
    pub fn iter(&self) -> impl Iterator<Item = (N, &T)> {
        let few = self.few().iter().map(|(number, value)| (*number, &**value));
        few.chain(self.many().into_iter().flat_map(Chunks::iter))
    }

    /// Those from this number on, in order.
    pub fn from(&self, number: N) -> impl Iterator<Item = (N, &T)> {
        let few = self.few().iter().map(|(number, value)| (*number, &**value));
        let few = few.skip_while(move |(at, _)| *at < number);
        let many = self.many().into_iter();
        few.chain(many.flat_map(move |many| many.from(number)))
    }

    /// Returns those before this number, the nearest first.
    pub fn before(&self, number: N) -> impl Iterator<Item = (N, &T)> {
        let few = self.few().iter().map(|(number, value)| (*number, &**value));
        let few = few.rev().skip_while(move |(at, _)| *at >= number);
        let many = self.many().into_iter();
        few.chain(many.flat_map(move |many| many.before(number)))
    }

    /// The one with this number.
    pub fn get_mut(&mut self, number: N) -> Option<&mut T> {
        match &mut self.0 {
            Form::Few(few) => {
                let at = search(few, number).ok()?;
                few.get_mut(at).map(|(_, value)| &mut **value)
            }
            Form::Many(many) => many.get_mut(number),
        }
    }

    /// The one with this number.
    pub fn get(&self, number: N) -> Option<&T> {
        match &self.0 {
            Form::Few(few) => {
                let at = search(few, number).ok()?;
                few.get(at).map(|(_, value)| &**value)
            }
            Form::Many(many) => many.get(number),
        }
    }

    /// How many stand before this number; none if it is not here.
    pub fn rank(&self, number: N) -> Option<usize> {
        match &self.0 {
            Form::Few(few) => search(few, number).ok(),
            Form::Many(many) => many.rank(number),
        }
    }

    /// Puts a value in its place by number. A number that is here already keeps its value: the new one comes back.
    pub fn insert(&mut self, number: N, value: Box<T>) -> Result<(), Box<T>> {
        match &mut self.0 {
            Form::Few(few) => match search(few, number) {
                Ok(_) => return Err(value),
                Err(at) => {
                    few.reserve_exact(1);
                    few.insert(at, (number, value));
                }
            },
            Form::Many(many) => return many.insert(number, value),
        }
        self.spread();
        Ok(())
    }

    /// Takes out the one with this number.
    pub fn remove(&mut self, number: N) -> Option<Box<T>> {
        match &mut self.0 {
            Form::Few(few) => {
                let at = search(few, number).ok()?;
                Some(few.remove(at).1)
            }
            Form::Many(many) => {
                let value = many.remove(number);
                self.gather();
                value
            }
        }
    }

    /// Takes the first one out.
    pub fn pop_front(&mut self) -> Option<(N, Box<T>)> {
        match &mut self.0 {
            Form::Few(few) => (!few.is_empty()).then(|| few.remove(0)),
            Form::Many(many) => {
                let first = many.pop_front();
                self.gather();
                first
            }
        }
    }

    /// Takes out those that this is true of. If it is true of all of them, none is moved.
    pub fn split_off(&mut self, leaves: impl Fn(N, &T) -> bool) -> Roster<N, T> {
        if self.iter().all(|(number, value)| leaves(number, value)) {
            return std::mem::take(self);
        }
        if !self.iter().any(|(number, value)| leaves(number, value)) {
            return Roster::default();
        }
        let (gone, left) = std::mem::take(self)
            .into_members()
            .partition(|(number, value)| leaves(*number, value));
        *self = Roster::of(left);
        Roster::of(gone)
    }

    /// Those in this list, which is in order.
    fn of(members: Vec<Member<N, T>>) -> Self {
        Roster(match members.len() {
            0..=FEW => Form::Few(members),
            _ => Form::Many(Box::new(Chunks::of(members))),
        })
    }

    fn into_members(self) -> impl Iterator<Item = Member<N, T>> {
        let (few, many) = match self.0 {
            Form::Few(few) => (few, None),
            Form::Many(many) => (Vec::new(), Some(many.chunks)),
        };
        let many = many.into_iter().flatten().flat_map(|chunk| chunk.members);
        few.into_iter().chain(many)
    }

    /// The list; empty where there are many.
    fn few(&self) -> &[Member<N, T>] {
        match &self.0 {
            Form::Few(few) => few,
            Form::Many(_) => &[],
        }
    }

    /// The chunks, where there are many.
    fn many(&self) -> Option<&Chunks<N, T>> {
        match &self.0 {
            Form::Few(_) => None,
            Form::Many(many) => Some(many),
        }
    }

    /// From a list to chunks once there are too many for it.
    fn spread(&mut self) {
        let Form::Few(few) = &mut self.0 else { return };
        if few.len() > FEW {
            self.0 = Form::Many(Box::new(Chunks::of(std::mem::take(few))));
        }
    }

    /// Back to a list once they are few again: half as many, so that one that comes and goes does not cost a move each time.
    fn gather(&mut self) {
        let Form::Many(many) = &mut self.0 else {
            return;
        };
        if many.len() <= FEW / 2 {
            let chunks = std::mem::take(&mut many.chunks).into_iter();
            self.0 = Form::Few(chunks.flat_map(|chunk| chunk.members).collect());
        }
    }
}

/// Where the number is in a list, or would be.
fn search<N: Copy + Ord, T>(few: &[Member<N, T>], number: N) -> Result<usize, usize> {
    few.binary_search_by_key(&number, |(n, _)| *n)
}

/// Many members. Front, look-up, insertion and removal are a binary search and a short move; the rank adds the lengths of the
/// chunks before.
#[derive(Debug, Clone)]
struct Chunks<N, T> {
    chunks: VecDeque<Chunk<N, T>>,
    // How many each chunk has, once more: a rank adds up neighbours here, and reads no other chunk for it.
    lens: VecDeque<u32>,
    len: usize,
}

/// Neighbours. A search goes by `start`, and so reads the memory of one chunk only.
#[derive(Debug, Clone)]
struct Chunk<N, T> {
    // Above every number of the chunks before, and not above any in this one.
    start: N,
    members: VecDeque<Member<N, T>>,
}

impl<N: Copy + Ord, T> Chunk<N, T> {
    fn of(number: N, value: Box<T>) -> Chunk<N, T> {
        Chunk {
            start: number,
            members: VecDeque::from([(number, value)]),
        }
    }

    fn len(&self) -> usize {
        self.members.len()
    }

    /// Where the number is, or would be.
    fn search(&self, number: N) -> Result<usize, usize> {
        self.members.binary_search_by_key(&number, |(n, _)| *n)
    }
}

impl<N, T> Default for Chunks<N, T> {
    fn default() -> Self {
        Chunks {
            chunks: VecDeque::new(),
            lens: VecDeque::new(),
            len: 0,
        }
    }
}

impl<N: Copy + Ord, T> Chunks<N, T> {
    /// These, which are in order.
    fn of(members: Vec<Member<N, T>>) -> Self {
        let mut chunks = Chunks {
            len: members.len(),
            ..Chunks::default()
        };
        let mut members = members.into_iter();
        loop {
            let members: VecDeque<_> = members.by_ref().take(CHUNK).collect();
            let Some(start) = members.front().map(|(number, _)| *number) else {
                return chunks;
            };
            chunks.put(chunks.chunks.len(), Chunk { start, members });
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn front(&self) -> Option<(N, &T)> {
        let (number, value) = self.chunks.front()?.members.front()?;
        Some((*number, value))
    }

    fn iter(&self) -> impl Iterator<Item = (N, &T)> {
        let members = self.chunks.iter().flat_map(|chunk| &chunk.members);
        members.map(|(number, value)| (*number, &**value))
    }

    fn from(&self, number: N) -> impl Iterator<Item = (N, &T)> {
        let first = self.chunk_of(number);
        let members = self
            .chunks
            .iter()
            .skip(first)
            .flat_map(|chunk| &chunk.members);
        let from = members.skip_while(move |(at, _)| *at < number);
        from.map(|(number, value)| (*number, &**value))
    }

    fn before(&self, number: N) -> impl Iterator<Item = (N, &T)> {
        let last = self.chunk_of(number);
        let members = self
            .chunks
            .iter()
            .take(last + 1)
            .rev()
            .flat_map(|chunk| chunk.members.iter().rev());
        let before = members.skip_while(move |(at, _)| *at >= number);
        before.map(|(number, value)| (*number, &**value))
    }

    fn get_mut(&mut self, number: N) -> Option<&mut T> {
        let (chunk, at) = self.find(number)?;
        let (_, value) = self.chunks.get_mut(chunk)?.members.get_mut(at)?;
        Some(value)
    }

    fn get(&self, number: N) -> Option<&T> {
        let (chunk, at) = self.find(number)?;
        let (_, value) = self.chunks.get(chunk)?.members.get(at)?;
        Some(value)
    }

    fn rank(&self, number: N) -> Option<usize> {
        let (chunk, at) = self.find(number)?;
        let before: u32 = self.lens.iter().take(chunk).sum();
        Some(before as usize + at)
    }

    fn insert(&mut self, number: N, value: Box<T>) -> Result<(), Box<T>> {
        let index = self.chunk_of(number);
        match self.chunks.get_mut(index) {
            None => self.put(index, Chunk::of(number, value)),
            Some(chunk) => match chunk.search(number) {
                Ok(_) => return Err(value),
                // Arrival at the end of a full last chunk, the usual case: a fresh chunk rather than a split.
                Err(at) if at == chunk.len() && chunk.len() >= CHUNK => {
                    self.put(index + 1, Chunk::of(number, value));
                }
                Err(at) => {
                    chunk.start = chunk.start.min(number);
                    chunk.members.insert(at, (number, value));
                    self.lens[index] += 1;
                    self.split(index);
                }
            },
        }
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, number: N) -> Option<Box<T>> {
        let (index, at) = self.find(number)?;
        let chunk = self.chunks.get_mut(index)?;
        let (_, value) = chunk.members.remove(at)?;
        self.lens[index] -= 1;
        if chunk.len() == 0 {
            self.chunks.remove(index);
            self.lens.remove(index);
        }
        self.len -= 1;
        Some(value)
    }

    fn pop_front(&mut self) -> Option<Member<N, T>> {
        let first = self.chunks.front_mut()?.members.pop_front()?;
        self.len -= 1;
        match self.lens.front_mut() {
            Some(len) if *len > 1 => *len -= 1,
            _ => {
                self.lens.pop_front();
                self.chunks.pop_front();
            }
        }
        Some(first)
    }

    /// Makes two of a chunk that has become too long.
    fn split(&mut self, index: usize) {
        let Some(chunk) = self
            .chunks
            .get_mut(index)
            .filter(|chunk| chunk.len() > CHUNK)
        else {
            return;
        };
        let members = chunk.members.split_off(CHUNK / 2);
        self.lens[index] = chunk.len() as u32;
        if let Some((start, _)) = members.front() {
            let start = *start;
            self.put(index + 1, Chunk { start, members });
        }
    }

    fn put(&mut self, index: usize, chunk: Chunk<N, T>) {
        self.lens.insert(index, chunk.len() as u32);
        self.chunks.insert(index, chunk);
    }

    /// The chunk that holds or would hold the number: the last one that starts at or before it.
    fn chunk_of(&self, number: N) -> usize {
        // Most leave at the front and come at the end: then one look is enough.
        let starts_after = |chunk: &Chunk<N, T>| chunk.start > number;
        if self.chunks.get(1).is_none_or(starts_after) {
            return 0;
        }
        match self.chunks.back() {
            Some(last) if !starts_after(last) => self.chunks.len() - 1,
            _ => self.chunks.partition_point(|chunk| !starts_after(chunk)) - 1,
        }
    }

    fn find(&self, number: N) -> Option<(usize, usize)> {
        let index = self.chunk_of(number);
        let at = self.chunks.get(index)?.search(number).ok()?;
        Some((index, at))
    }
}
