//! Prints a batch in hex for each file in `testdata/batches`, for other implementations to read.

#[allow(dead_code, reason = "the files have more fields than the records, which only tests read")]
#[path = "../tests/it/batches.rs"]
mod batches;

fn main() {
    for vector in batches::read_all() {
        let batch = batches::encode(&vector);
        let hex: String = batch.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{} {hex}", vector.name);
    }
}
