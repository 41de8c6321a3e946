//! CRC-32C, by which a torn or altered file is told from a whole one. Pure.

/// Reversed polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What eight bytes at a time are looked up in: a transcript has megabytes.
const TABLES: [[u32; 256]; 8] = tables();

/// The checksum of bytes that follow others whose checksum is `before`; 0 at the beginning.
pub(super) fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    let look = |table: usize, byte: u32| TABLES[table][(byte & 0xff) as usize];
    let mut crc = !before;
    let (eights, rest) = bytes.as_chunks::<8>();
    for [a, b, c, d, e, f, g, h] in eights {
        let low = crc ^ u32::from_le_bytes([*a, *b, *c, *d]);
        let high = u32::from_le_bytes([*e, *f, *g, *h]);
        crc = look(7, low) ^ look(6, low >> 8) ^ look(5, low >> 16) ^ look(4, low >> 24);
        crc ^= look(3, high) ^ look(2, high >> 8) ^ look(1, high >> 16) ^ look(0, high >> 24);
    }
    for byte in rest {
        crc = look(0, crc ^ u32::from(*byte)) ^ (crc >> 8);
    }
    !crc
}

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = tables[0][(before & 0xff) as usize] ^ (before >> 8);
            byte += 1;
        }
        table += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums_come_out() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn parts_add_up_wherever_they_are_cut() {
        let bytes: Vec<u8> = (0..100).collect();
        for at in 0..bytes.len() {
            let (first, second) = bytes.split_at(at);
            assert_eq!(crc32c(crc32c(0, first), second), crc32c(0, &bytes), "{at}");
        }
    }
}
