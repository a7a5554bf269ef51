//! Repeatable random numbers (the same seed yields the same sequence), and mutations of valid input.

/// A SplitMix64 generator.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `end`, exclusive; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Returns a number from `start` to `end`, exclusive.
    pub fn between(&mut self, start: usize, end: usize) -> usize {
        start + self.below(end - start)
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    pub fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    pub fn random_bytes(&mut self, longest: usize) -> Vec<u8> {
        let length = self.below(longest + 1);
        self.bytes(length)
    }

    /// Returns an input of the corpus with up to three mutations.
    pub fn mutated(&mut self, corpus: &[&[u8]]) -> Vec<u8> {
        let mut bytes = self.pick(corpus).to_vec();
        for _ in 0..self.below(4) {
            self.damage(&mut bytes, corpus);
        }
        bytes
    }

    fn damage(&mut self, bytes: &mut Vec<u8>, corpus: &[&[u8]]) {
        let at = self.below(bytes.len() + 1);
        let to = (at + self.below(12)).min(bytes.len());
        match self.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => bytes.insert(at, self.byte()),
            3 => bytes.insert(at, 0),
            4 => {
                let other = self.pick(corpus);
                let from = self.below(other.len());
                let until = (from + self.below(30)).min(other.len());
                drop(bytes.splice(at..at, other[from..until].iter().copied()));
            }
            5 => {
                let again = bytes[at..to].to_vec();
                drop(bytes.splice(at..at, again));
            }
            6 => self.falsify_length(bytes),
            _ => {
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add(1 + self.below(255) as u8))
            }
        }
    }

    /// Replaces a possible length with a wrong one: off by one, negative, huge, or too small to include itself.
    fn falsify_length(&mut self, bytes: &mut [u8]) {
        let Some(last) = bytes.len().checked_sub(4) else { return };
        let at = self.below(last.min(12) + 1);
        let length = bytes[at..].first_chunk().map_or(0, |length| i32::from_be_bytes(*length));
        let wrong = [
            length.wrapping_add(1),
            length.wrapping_sub(1),
            length.wrapping_neg(),
            -1,
            0,
            3,
            4,
            i32::MIN,
            i32::MAX,
            0x4000_0000,
        ];
        bytes[at..at + 4].copy_from_slice(&wrong[self.below(wrong.len())].to_be_bytes());
    }
}
