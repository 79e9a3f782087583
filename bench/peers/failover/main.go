// Command failover-load appends numbered records to a log of three replicas,
// one at a time, while another program kills servers:
//
//	failover-load kafka|jetstream|etcd URL,URL..
//
// It prints `ack MICROSECONDS`, the time of day, for each acknowledged record.
// A record that fails is sent again until it is acknowledged. Each line of the
// standard input is a question: `leader` prints `leader NAME`, the server that
// leads the log, and `whole` prints `whole true` if all replicas are complete.
// When the input ends, it reads the log and prints `result` and JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	replicas = 3
	name     = "failover"
	limit    = 250 * time.Millisecond // for one try; a longer one would hide the servers
	asking   = time.Second            // for a question about the servers
	reading  = time.Minute            // for the whole log
	pause    = 2 * time.Millisecond   // after an acknowledgement
	again    = 20 * time.Millisecond  // after an error
	backoff  = 50 * time.Millisecond  // of a client that connects again
	fresh    = 100 * time.Millisecond // the least age of what a client knows of the servers
)

// A replicated is a log, or a map, of a system.
type replicated interface {
	append(ctx context.Context, record string) error
	leader(ctx context.Context) (string, error)
	isWhole(ctx context.Context) (bool, error)
	// read returns all records.
	read(ctx context.Context) ([]string, error)
}

type result struct {
	Acknowledged int      `json:"acknowledged"`
	Lost         int      `json:"lost"`
	Twice        int      `json:"twice"`
	Failed       int      `json:"failed_tries"`
	Errors       []string `json:"first_errors"`
}

var printing sync.Mutex

func say(format string, values ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf(format+"\n", values...)
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("failover-load: ")
	if len(os.Args) != 3 {
		log.Fatal("usage: failover-load kafka|jetstream|etcd URL,URL..")
	}
	open, ok := map[string]func([]string) (replicated, error){
		"kafka": openKafka, "jetstream": openJetStream, "etcd": openEtcd,
	}[os.Args[1]]
	if !ok {
		log.Fatalf("unknown system %q", os.Args[1])
	}
	system, err := open(strings.Split(os.Args[2], ","))
	if err != nil {
		log.Fatal(err)
	}
	end := make(chan struct{})
	go func() {
		answer(system)
		close(end)
	}()
	r := load(system, end)
	if err := check(system, r); err != nil {
		log.Fatal(err)
	}
	line, err := json.Marshal(r)
	if err != nil {
		log.Fatal(err)
	}
	say("result %s", line)
}

// answer answers the questions until the input ends.
func answer(system replicated) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		ctx, cancel := context.WithTimeout(context.Background(), asking)
		switch lines.Text() {
		case "leader":
			leader, err := system.leader(ctx)
			if err != nil {
				leader = "unknown"
			}
			say("leader %s", leader)
		case "whole":
			isWhole, err := system.isWhole(ctx)
			say("whole %t", isWhole && err == nil)
		default:
			log.Fatalf("unknown question %q", lines.Text())
		}
		cancel()
	}
}

// load appends records until the end.
func load(system replicated, end <-chan struct{}) *result {
	r := &result{Errors: []string{}}
	for {
		select {
		case <-end:
			return r
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := system.append(ctx, strconv.Itoa(r.Acknowledged))
		cancel()
		if err != nil {
			r.Failed++
			if len(r.Errors) < 10 {
				r.Errors = append(r.Errors, err.Error())
			}
			time.Sleep(again)
			continue
		}
		r.Acknowledged++
		say("ack %d", time.Now().UnixMicro())
		time.Sleep(pause)
	}
}

// check counts the acknowledged records that are not in the log, and those that
// are in it more than once.
func check(system replicated, r *result) error {
	ctx, cancel := context.WithTimeout(context.Background(), reading)
	defer cancel()
	records, err := system.read(ctx)
	if err != nil {
		return err
	}
	copies := make(map[string]int, len(records))
	for _, record := range records {
		copies[record]++
	}
	for n := range r.Acknowledged {
		switch copies[strconv.Itoa(n)] {
		case 0:
			r.Lost++
		case 1:
		default:
			r.Twice++
		}
	}
	return nil
}
