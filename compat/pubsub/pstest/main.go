// Runs Google's fake of the service for tests in Go as a separate server: pstest HOST:PORT
package main

import (
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	_, text, err := net.SplitHostPort(os.Args[1])
	if err != nil {
		panic(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	server := pstest.NewServerWithPort(port)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, os.Interrupt)
	<-ended
	_ = server.Close()
}
