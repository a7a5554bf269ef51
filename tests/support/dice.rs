//! Chance that is the same on every run: random bytes, and damage to good ones.

/// Good enough to pick mutations. The seed repeats a run; it must not be 0.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides.max(1) as u64) as usize
    }

    pub fn byte(&mut self) -> u8 {
        self.roll(256) as u8
    }

    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.roll(choices.len())]
    }

    pub fn random_bytes(&mut self, longest: usize) -> Vec<u8> {
        (0..self.roll(longest + 1)).map(|_| self.byte()).collect()
    }

    /// One of the corpus with up to three damages.
    pub fn mutated(&mut self, corpus: &[&[u8]]) -> Vec<u8> {
        let mut bytes = self.pick(corpus).to_vec();
        for _ in 0..self.roll(4) {
            self.damage(&mut bytes, corpus);
        }
        bytes
    }

    fn damage(&mut self, bytes: &mut Vec<u8>, corpus: &[&[u8]]) {
        let at = self.roll(bytes.len() + 1);
        let to = (at + self.roll(12)).min(bytes.len());
        match self.roll(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => bytes.insert(at, self.byte()),
            3 => bytes.insert(at, 0),
            4 => {
                let other = self.pick(corpus);
                let from = self.roll(other.len());
                let until = (from + self.roll(30)).min(other.len());
                drop(bytes.splice(at..at, other[from..until].iter().copied()));
            }
            5 => {
                let again = bytes[at..to].to_vec();
                drop(bytes.splice(at..at, again));
            }
            6 => self.falsify_length(bytes),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add(1 + self.roll(255) as u8)),
        }
    }

    /// What may be a length becomes one too many or too few, negative, huge, or too small to count itself.
    fn falsify_length(&mut self, bytes: &mut [u8]) {
        let Some(last) = bytes.len().checked_sub(4) else { return };
        let at = self.roll(last.min(12) + 1);
        let length = bytes[at..].first_chunk().map_or(0, |length| i32::from_be_bytes(*length));
        let lies = [
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
        bytes[at..at + 4].copy_from_slice(&lies[self.roll(lies.len())].to_be_bytes());
    }
}
