//! The binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let flags: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let native = flags.first().cloned().unwrap_or("127.0.0.1:7400".into());
        let config = thalweg::config::Config::load(&thalweg::config::Sources { flags: vec![("native", native)], ..Default::default() }.with_env())?;
        let server = thalweg::Server::start(&config).await?;
        println!("{:?}", server.native);
        tokio::signal::ctrl_c().await?;
        Ok(())
    })
}
