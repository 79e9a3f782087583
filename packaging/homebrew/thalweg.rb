# Formula for Homebrew. The release workflow writes the checksums of its archives into it.
class Thalweg < Formula
  desc "Broker with one durable log behind Kafka, SQS, Pub/Sub, Redis and HTTP"
  homepage "https://github.com/thalweg/thalweg"
  version "@VERSION@"
  license "Apache-2.0"

  depends_on :linux

  on_linux do
    on_intel do
      url "https://github.com/thalweg/thalweg/releases/download/v@VERSION@/thalweg-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@SHA256_X86_64@"
    end
    on_arm do
      url "https://github.com/thalweg/thalweg/releases/download/v@VERSION@/thalweg-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@SHA256_AARCH64@"
    end
  end

  def install
    bin.install "bin/thalweg"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/thalweg.bash" => "thalweg"
    zsh_completion.install "completions/_thalweg"
    fish_completion.install "completions/thalweg.fish"
    etc.install "thalweg.toml" => "thalweg.toml.example"
  end

  service do
    run [opt_bin/"thalweg", "serve", "--data", var/"lib/thalweg"]
    keep_alive crashed: true
    working_dir var
    log_path var/"log/thalweg.log"
    error_log_path var/"log/thalweg.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/thalweg --version")
    system bin/"thalweg", "init", "ci", "--out", testpath/"thalweg.toml"
    assert_match "memory_max", (testpath/"thalweg.toml").read
  end
end
