//! A list in order of arrival that can say how many stand before a given one.

use std::collections::VecDeque;

/// Members a chunk: small enough that moving its pointers costs less than a cache miss or two, large enough that a
/// rank among 100,000 adds up only some hundred lengths.
const CHUNK: usize = 512;

/// Values in the order of their numbers. Front, look-up, insertion and removal are a binary search and a short move;
/// the rank adds the lengths of the chunks before.
#[derive(Debug)]
pub struct Roster<T> {
    chunks: VecDeque<VecDeque<(u64, Box<T>)>>,
    len: usize,
}

impl<T> Default for Roster<T> {
    fn default() -> Self {
        Roster {
            chunks: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> Roster<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first, with its number.
    pub fn front(&self) -> Option<(u64, &T)> {
        self.chunks
            .front()?
            .front()
            .map(|(number, value)| (*number, &**value))
    }

    /// All in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.chunks
            .iter()
            .flatten()
            .map(|(number, value)| (*number, &**value))
    }

    /// The one with this number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (chunk, at) = self.find(number)?;
        self.chunks
            .get_mut(chunk)?
            .get_mut(at)
            .map(|(_, value)| &mut **value)
    }

    /// The one with this number.
    pub fn get(&self, number: u64) -> Option<&T> {
        let (chunk, at) = self.find(number)?;
        self.chunks.get(chunk)?.get(at).map(|(_, value)| &**value)
    }

    /// How many stand before this number; none if it is not here.
    pub fn rank(&self, number: u64) -> Option<usize> {
        let (chunk, at) = self.find(number)?;
        Some(
            self.chunks
                .iter()
                .take(chunk)
                .map(VecDeque::len)
                .sum::<usize>()
                + at,
        )
    }

    /// Puts a value in its place by number. A number that is here already keeps its value: the new one comes back.
    pub fn insert(&mut self, number: u64, value: Box<T>) -> Result<(), Box<T>> {
        let index = self.chunk_of(number);
        let Some(chunk) = self.chunks.get_mut(index) else {
            self.chunks.push_back(VecDeque::from([(number, value)]));
            self.len += 1;
            return Ok(());
        };
        match chunk.binary_search_by_key(&number, |(n, _)| *n) {
            Ok(_) => return Err(value),
            // Arrival at the end of a full last chunk, the usual case: a fresh chunk rather than a split.
            Err(at) if at == chunk.len() && chunk.len() >= CHUNK => {
                self.chunks
                    .insert(index + 1, VecDeque::from([(number, value)]));
            }
            Err(at) => {
                chunk.insert(at, (number, value));
                if chunk.len() > CHUNK {
                    let tail = chunk.split_off(CHUNK / 2);
                    self.chunks.insert(index + 1, tail);
                }
            }
        }
        self.len += 1;
        Ok(())
    }

    /// Takes out the one with this number.
    pub fn remove(&mut self, number: u64) -> Option<Box<T>> {
        let (index, at) = self.find(number)?;
        let chunk = self.chunks.get_mut(index)?;
        let (_, value) = chunk.remove(at)?;
        if chunk.is_empty() {
            self.chunks.remove(index);
        }
        self.len -= 1;
        Some(value)
    }

    /// The chunk that holds or would hold the number: the last one that starts at or before it.
    fn chunk_of(&self, number: u64) -> usize {
        let starts_before =
            |chunk: &VecDeque<(u64, Box<T>)>| chunk.front().is_some_and(|(n, _)| *n <= number);
        self.chunks.partition_point(starts_before).saturating_sub(1)
    }

    fn find(&self, number: u64) -> Option<(usize, usize)> {
        let index = self.chunk_of(number);
        let at = self
            .chunks
            .get(index)?
            .binary_search_by_key(&number, |(n, _)| *n)
            .ok()?;
        Some((index, at))
    }
}
