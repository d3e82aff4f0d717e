//! Canonical rows: a schema, how many rows, then for each its length and its bytes.

use shardfmt::RowCodec;

use super::Draw;

/// Bytes accepted as rows are canonical: written again, they are the same bytes.
pub(crate) fn row(data: &[u8]) -> bool {
    let mut draw = Draw::new(data);
    let codec = RowCodec::new(draw.schema()).expect("a schema that rows can hold");
    let count = draw.u8() % 16;
    let rows: Vec<&[u8]> = (0..count)
        .map(|_| {
            let length = draw.u8();
            draw.bytes(length.into())
        })
        .collect();
    let Ok(batch) = codec.decode(rows.iter().copied()) else { return false };
    assert_eq!(batch.num_rows(), rows.len());
    let encoder = codec.encoder(&batch).expect("it is of this schema");
    for (index, row) in rows.iter().enumerate() {
        let mut again = Vec::new();
        encoder.encode(index, &mut again).expect("a row that was read is not too large");
        assert_eq!(again, *row);
    }
    count > 0
}
