//! Prints a batch in hex for each file in `testdata/batches`, for other implementations to read.

// What stands in the files beside the records is for the tests.
#[allow(dead_code)]
#[path = "../tests/it/batches.rs"]
mod batches;

fn main() {
    for vector in batches::read_all() {
        let batch = batches::encode(&vector.records);
        let hex: String = batch.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{} {hex}", vector.name);
    }
}
