//! Rows that memory does not allow for.

use super::*;

fn with_memory(path: &Path, memory: ByteSize, config: &IngestConfig) -> Result<Manifest, IngestError> {
    let resources = Resources { memory, ..Resources::threads(1) };
    ingest(Source::open(path, config)?, config, &resources, &Kept::default(), &Counted::default())
}

#[test]
fn a_row_of_more_than_a_quarter_of_memory_is_refused_and_never_left_out() {
    let least = Resources::LEAST_MEMORY;
    let (_directory, text) = one_file("long.txt", &b"a line\n".repeat(3 << 20));
    let (images, image) = one_file("1.png", &[]);
    File::options().write(true).open(&image).unwrap().set_len(17 << 20).unwrap();
    for (path, name) in [(text.as_path(), "long.txt"), (images.path(), "1.png has 17.0 MiB")] {
        // The same input with more memory is another version if it is left out.
        for config in [sequential(), skipping()] {
            let refused = with_memory(path, least, &config).expect_err("it does not fit").to_string();
            assert!(refused.contains("`memory`") && refused.contains(name), "{refused}");
            assert!(refused.contains("more than 64.0 MiB; allow for more"), "{refused}");
        }
    }
    let more = ByteSize(2 * least.0);
    assert_eq!(with_memory(&text, more, &sequential()).unwrap().sample_count(), 1);
    let decoded = with_memory(images.path(), more, &sequential()).expect_err("zeros are no image");
    assert!(matches!(decoded, IngestError::Image { .. }), "{decoded}");
}
