//! The wire format of Protocol Buffers: enough of it to read messages of a known shape. Pure functions on bytes
//! from outside: no length is believed.

/// Why bytes are no message.
pub(super) type Reason = &'static str;

const CUT_OFF: Reason = "a field of it is cut off";

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'m> {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64,
    /// Bytes, a text, a message, or packed numbers.
    Bytes(&'m [u8]),
}

/// The fields of a message, each with its number. Nothing follows an error.
#[derive(Clone, Debug)]
pub(super) struct Fields<'m> {
    rest: &'m [u8],
}

pub(super) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

impl<'m> Fields<'m> {
    fn field(&mut self) -> Result<(u64, Value<'m>), Reason> {
        let tag = varint(&mut self.rest)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => {
                take::<8>(&mut self.rest)?;
                Value::Fixed64
            }
            2 => {
                let length = usize::try_from(varint(&mut self.rest)?).map_err(|_| CUT_OFF)?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(CUT_OFF)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(take(&mut self.rest)?),
            _ => return Err("it has a field of unknown type"),
        };
        match tag >> 3 {
            0 => Err("it has a field without number"),
            number => Ok((number, value)),
        }
    }
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u64, Value<'m>), Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Takes a number of 1 to 10 bytes, of 7 bits each.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, Reason> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Ok(number);
        }
    }
    Err(if bytes.len() < 10 { CUT_OFF } else { "it has a number of more than 64 bits" })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Reason> {
    let (taken, rest) = bytes.split_first_chunk().ok_or(CUT_OFF)?;
    *bytes = rest;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_have_numbers_and_values() {
        let message =
            [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 0, 0, 0, 0, 0, 0, 0, 0];
        let found: Vec<_> = fields(&message).map(Result::unwrap).collect();
        let expected = [
            (1, Value::Varint(150)),
            (2, Value::Bytes(b"hi")),
            (3, Value::Fixed32([1, 2, 3, 4])),
            (4, Value::Fixed64),
        ];
        assert_eq!(found, expected);
        for cut in [1, 2, 4, 6, 9, 15, 20] {
            assert_eq!(fields(&message[..cut]).last(), Some(Err(CUT_OFF)), "{cut}");
        }
        assert!(fields(&[0x0b]).next().unwrap().is_err() && fields(&[0x00, 0]).next().unwrap().is_err());
    }

    proptest! {
        #[test]
        fn numbers_come_back(number: u64) {
            let (mut bytes, mut rest) = (Vec::new(), number);
            while rest >= 0x80 {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
            prop_assert_eq!(varint(&mut bytes.as_slice()), Ok(number));
            prop_assert!(varint(&mut &bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(fields(&bytes).count() <= bytes.len());
        }
    }
}
