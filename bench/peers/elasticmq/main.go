// Command sqs-load puts a load on a queue of any server that supports SQS's JSON
// protocol over HTTP/1.1, and reports rates, latencies and CPU time.
//
// Requests are prepared bytes, and answers are parsed only in part, so that a
// small machine has CPU time left for the server. A connection has one request
// in flight at a time, like the connections of an SDK.
package main

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	batch    = 10               // messages in a batch: the maximum of SQS
	stall    = 30 * time.Second // an answer that takes longer is a failure
	ticks    = 100              // of the kernel's clock per second, as in /proc
	interval = 50 * time.Millisecond
)

type config struct {
	Address     string  `json:"-"`
	Mode        string  `json:"mode"`
	Connections int     `json:"connections"`
	BodyBytes   int     `json:"body_bytes"`
	WarmUp      float64 `json:"warm_up_seconds"`
	Seconds     float64 `json:"seconds"`
	ServerPID   int     `json:"-"`
}

// latency holds the distribution of the samples, in microseconds.
type latency struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

type result struct {
	config
	Calls         int                 `json:"calls"`
	CallsPerS     float64             `json:"calls_per_s"`
	MessagesPerS  float64             `json:"messages_per_s"` // messages sent; in the other modes, messages deleted
	EmptyReceives int                 `json:"empty_receives"`
	LatencyUS     map[string]*latency `json:"latency_us"` // by action, of all calls (all), and of whole cycles (round)
	ServerCPU     float64             `json:"server_cpu_us_per_call,omitempty"`
	ServerMemory  int64               `json:"server_resident_bytes_max,omitempty"`
	ClientCPU     float64             `json:"client_cpu_us_per_call"`
}

func main() {
	var c config
	flag.StringVar(&c.Address, "address", "127.0.0.1:9324", "`HOST:PORT` of the server")
	flag.StringVar(&c.Mode, "mode", "send", "send; cycle: send, receive, delete; batch: cycle with ten messages per call")
	flag.IntVar(&c.Connections, "connections", 64, "connections, each with one request in flight")
	flag.IntVar(&c.BodyBytes, "body-bytes", 1024, "bytes of a message")
	flag.Float64Var(&c.WarmUp, "warm-up", 1, "seconds before the measurement")
	flag.Float64Var(&c.Seconds, "seconds", 4, "seconds of the measurement")
	flag.IntVar(&c.ServerPID, "pid", 0, "process of the server, whose CPU time and memory are reported")
	flag.Parse()

	log.SetFlags(0)
	log.SetPrefix("sqs-load: ")
	r, err := run(c)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		log.Fatal(err)
	}
}

func run(c config) (*result, error) {
	modes := map[string]func(*worker) error{"send": (*worker).send, "cycle": (*worker).cycle, "batch": (*worker).cycle}
	round, known := modes[c.Mode]
	switch {
	case flag.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case !known:
		return nil, fmt.Errorf("unknown mode %q", c.Mode)
	case c.Connections < 1 || c.BodyBytes < 1 || c.WarmUp < 0 || c.Seconds <= 0:
		return nil, errors.New("-connections, -body-bytes and -seconds must be above 0")
	}
	control, err := dial(c.Address)
	if err != nil {
		return nil, err
	}
	defer control.conn.Close()
	queue := fmt.Sprintf("load-%s-%d", c.Mode, c.Connections)
	answer, err := control.call(request(c.Address, "CreateQueue", fmt.Sprintf(`{"QueueName":%q}`, queue)))
	if err != nil {
		return nil, err
	}
	found := values(answer, "QueueUrl")
	if len(found) != 1 {
		return nil, fmt.Errorf("CreateQueue returned %s", answer)
	}
	l := newLoad(c, string(found[0]))
	r, err := l.run(round)
	_, deleted := control.call(request(c.Address, "DeleteQueue", fmt.Sprintf(`{"QueueUrl":"%s"}`, l.queue)))
	return r, errors.Join(err, deleted)
}

// load holds the state that all workers share.
type load struct {
	config
	queue       string // as in JSON, without the quotes
	size        int    // messages per call
	sum         []byte // expected checksum of a body
	sendRequest []byte
	recvRequest []byte
	begin, end  time.Time // of the measurement
	stopped     atomic.Bool
}

func newLoad(c config, queue string) *load {
	body := make([]byte, c.BodyBytes)
	for i := range body {
		// Printable characters that JSON does not escape.
		body[i] = "abcdefghijklmnopqrstuvwxyz0123456789 ,.-"[i*31%40]
	}
	sum := md5.Sum(body)
	l := &load{config: c, queue: queue, size: 1, sum: []byte(hex.EncodeToString(sum[:]))}
	if c.Mode == "batch" {
		l.size = batch
		entries := make([]string, batch)
		for i := range entries {
			entries[i] = fmt.Sprintf(`{"Id":"%d","MessageBody":"%s"}`, i, body)
		}
		l.sendRequest = request(c.Address, "SendMessageBatch",
			fmt.Sprintf(`{"QueueUrl":"%s","Entries":[%s]}`, queue, strings.Join(entries, ",")))
	} else {
		l.sendRequest = request(c.Address, "SendMessage",
			fmt.Sprintf(`{"QueueUrl":"%s","MessageBody":"%s"}`, queue, body))
	}
	// Waits a second: another worker may have received the message that this one sent.
	l.recvRequest = request(c.Address, "ReceiveMessage",
		fmt.Sprintf(`{"QueueUrl":"%s","MaxNumberOfMessages":%d,"WaitTimeSeconds":1}`, queue, l.size))
	return l
}

func (l *load) run(round func(*worker) error) (*result, error) {
	workers := make([]*worker, l.Connections)
	for i := range workers {
		c, err := dial(l.Address)
		if err != nil {
			return nil, fmt.Errorf("connection %d: %w", i+1, err)
		}
		defer c.conn.Close()
		workers[i] = &worker{load: l, connection: c, samples: map[string][]time.Duration{}}
	}
	l.begin = time.Now().Add(time.Duration(l.WarmUp * float64(time.Second)))
	l.end = l.begin.Add(time.Duration(l.Seconds * float64(time.Second)))
	failed := make([]error, len(workers))
	var all sync.WaitGroup
	for i, w := range workers {
		all.Go(func() {
			for !l.stopped.Load() && failed[i] == nil {
				failed[i] = round(w)
			}
			if failed[i] != nil {
				// The other workers stop.
				l.stopped.Store(true)
			}
		})
	}
	r := &result{config: l.config}
	l.watch(r)
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	r.summarize(workers)
	return r, nil
}

// watch waits for the end, and records the CPU time of the server and of this process during the measurement.
func (l *load) watch(r *result) {
	time.Sleep(time.Until(l.begin))
	server, client := serverCPU(l.ServerPID), clientCPU()
	for time.Now().Before(l.end) && !l.stopped.Load() {
		time.Sleep(min(interval, time.Until(l.end)))
		r.ServerMemory = max(r.ServerMemory, resident(l.ServerPID))
	}
	r.ServerCPU = float64((serverCPU(l.ServerPID) - server).Microseconds())
	r.ClientCPU = float64((clientCPU() - client).Microseconds())
	l.stopped.Store(true)
}

func (r *result) summarize(workers []*worker) {
	samples := map[string][]time.Duration{}
	deleted, sent := 0, 0
	for _, w := range workers {
		for what, some := range w.samples {
			samples[what] = append(samples[what], some...)
		}
		r.EmptyReceives += w.empty
		sent += w.sent
		deleted += w.deleted
	}
	r.LatencyUS = map[string]*latency{}
	for what, some := range samples {
		r.LatencyUS[what] = summarize(some)
	}
	r.Calls = len(samples["all"])
	r.CallsPerS = float64(r.Calls) / r.Seconds
	r.MessagesPerS = float64(deleted) / r.Seconds
	if r.Mode == "send" {
		r.MessagesPerS = float64(sent) / r.Seconds
	}
	r.ServerCPU /= float64(max(r.Calls, 1))
	r.ClientCPU /= float64(max(r.Calls, 1))
}

// worker is one connection with its measured results.
type worker struct {
	*load
	*connection
	samples              map[string][]time.Duration
	owed                 int // messages sent minus messages received by this worker
	empty, sent, deleted int
	scratch              []byte
}

// timed makes a call and records its duration. It reports whether the call ended within the measurement.
func (w *worker) timed(action string, request []byte) (answer []byte, counts bool, err error) {
	begin := time.Now()
	answer, err = w.call(request)
	end := time.Now()
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", action, err)
	}
	counts = w.counts(end)
	if counts {
		took := end.Sub(begin)
		w.samples[action] = append(w.samples[action], took)
		w.samples["all"] = append(w.samples["all"], took)
	}
	return answer, counts, nil
}

// counts reports whether a call that ended at this time belongs to the measurement.
func (l *load) counts(end time.Time) bool {
	return !end.Before(l.begin) && !end.After(l.end)
}

func (w *worker) send() error {
	action := "SendMessage"
	if w.size > 1 {
		action = "SendMessageBatch"
	}
	answer, counts, err := w.timed(action, w.sendRequest)
	if err != nil {
		return err
	}
	if bytes.Count(answer, w.sum) != w.size {
		return fmt.Errorf("%s accepted a different body: %s", action, answer)
	}
	if counts {
		w.sent += w.size
	}
	return nil
}

// cycle sends messages, then receives and deletes the same number.
func (w *worker) cycle() error {
	begin := time.Now()
	if err := w.send(); err != nil {
		return err
	}
	for w.owed += w.size; w.owed > 0 && !w.stopped.Load(); {
		answer, counts, err := w.timed("ReceiveMessage", w.recvRequest)
		if err != nil {
			return err
		}
		receipts := values(answer, "ReceiptHandle")
		if bytes.Count(answer, w.sum) != len(receipts) {
			return fmt.Errorf("ReceiveMessage returned a different body: %.500s", answer)
		}
		w.owed -= len(receipts)
		if len(receipts) == 0 {
			if counts {
				w.empty++
			}
			continue
		}
		if err := w.delete(receipts); err != nil {
			return err
		}
	}
	if end := time.Now(); w.owed <= 0 && w.counts(end) {
		w.samples["round"] = append(w.samples["round"], end.Sub(begin))
	}
	return nil
}

func (w *worker) delete(receipts [][]byte) error {
	action := "DeleteMessage"
	b := append(w.scratch[:0], `{"QueueUrl":"`...)
	b = append(b, w.queue...)
	if w.size == 1 {
		b = append(b, `","ReceiptHandle":"`...)
		b = append(append(b, receipts[0]...), `"}`...)
	} else {
		action = "DeleteMessageBatch"
		b = append(b, `","Entries":[`...)
		for i, receipt := range receipts {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(strconv.AppendInt(append(b, `{"Id":"`...), int64(i), 10), `","ReceiptHandle":"`...)
			b = append(append(b, receipt...), `"}`...)
		}
		b = append(b, `]}`...)
	}
	w.scratch = b
	answer, counts, err := w.timed(action, request(w.Address, action, string(b)))
	if err != nil {
		return err
	}
	if w.size > 1 && len(values(answer, "Id")) != len(receipts) || bytes.Contains(answer, []byte(`"Code"`)) {
		return fmt.Errorf("%s returned %.500s", action, answer)
	}
	if counts {
		w.deleted += len(receipts)
	}
	return nil
}

// request returns the bytes of a request, with the headers that SDKs send; the signature is not a real one.
func request(address, action, body string) []byte {
	const form = "POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-amz-json-1.0\r\n" +
		"X-Amz-Target: AmazonSQS.%s\r\nX-Amz-Date: 20261122T000000Z\r\nUser-Agent: sqs-load\r\n" +
		"Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261122/us-east-1/sqs/aws4_request, " +
		"SignedHeaders=content-type;host;x-amz-date;x-amz-target, " +
		"Signature=0000000000000000000000000000000000000000000000000000000000000000\r\n" +
		"Content-Length: %d\r\n\r\n%s"
	return fmt.Appendf(nil, form, address, action, len(body), body)
}

// connection is a persistent connection with one request at a time.
type connection struct {
	conn   net.Conn
	reader *bufio.Reader
	body   []byte // of the last answer
}

func dial(address string) (*connection, error) {
	conn, err := net.DialTimeout("tcp", address, stall)
	if err != nil {
		return nil, err
	}
	return &connection{conn: conn, reader: bufio.NewReaderSize(conn, 16<<10)}, nil
}

// call returns the body of the answer, which is valid until the next call.
func (c *connection) call(request []byte) ([]byte, error) {
	if err := c.conn.SetDeadline(time.Now().Add(stall)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return nil, err
	}
	status, err := c.line()
	if err != nil {
		return nil, err
	}
	isFine := bytes.HasPrefix(status, []byte("HTTP/1.1 200"))
	first := string(status[:min(len(status), 80)])
	length, isChunked := 0, false
	for {
		header, err := c.line()
		if err != nil {
			return nil, err
		}
		if len(header) == 0 {
			break
		}
		name, value, _ := bytes.Cut(header, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return nil, err
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			isChunked = true
		}
	}
	c.body = c.body[:0]
	if isChunked {
		err = c.chunks()
	} else {
		err = c.more(length)
	}
	if err == nil && !isFine {
		err = fmt.Errorf("%s: %.500s", first, c.body)
	}
	return c.body, err
}

func (c *connection) line() ([]byte, error) {
	line, err := c.reader.ReadSlice('\n')
	return bytes.TrimRight(line, "\r\n"), err
}

func (c *connection) more(length int) error {
	begin := len(c.body)
	c.body = slices.Grow(c.body, length)[:begin+length]
	_, err := io.ReadFull(c.reader, c.body[begin:])
	return err
}

func (c *connection) chunks() error {
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		length, err := strconv.ParseInt(string(line), 16, 32)
		if err != nil {
			return err
		}
		if err := c.more(int(length)); err != nil {
			return err
		}
		if _, err := c.line(); err != nil || length == 0 {
			return err
		}
	}
}

// values returns the texts of all members with this name, without unescaping them.
func values(json []byte, name string) [][]byte {
	var found [][]byte
	for key := []byte(`"` + name + `"`); ; {
		_, rest, ok := bytes.Cut(json, key)
		if !ok {
			return found
		}
		json = rest
		rest = bytes.TrimLeft(rest, " \t\r\n")
		if len(rest) == 0 || rest[0] != ':' {
			continue
		}
		rest = bytes.TrimLeft(rest[1:], " \t\r\n")
		if len(rest) == 0 || rest[0] != '"' {
			continue
		}
		end := 1
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		if end < len(rest) {
			found = append(found, rest[1:end])
			json = rest[end:]
		}
	}
}

func summarize(samples []time.Duration) *latency {
	slices.Sort(samples)
	var sum time.Duration
	for _, d := range samples {
		sum += d
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	rank := func(q float64) float64 { // nearest rank
		return us(samples[int(math.Ceil(q*float64(len(samples))))-1])
	}
	return &latency{len(samples), us(sum) / float64(len(samples)), rank(.5), rank(.99), rank(.999), rank(1)}
}

// serverCPU returns the user and system time of a process so far; 0 if it does not exist.
func serverCPU(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name of the command may contain spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var sum int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}

// resident returns the resident memory of a process in bytes; 0 if it does not exist.
func resident(pid int) int64 {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(statm))
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// clientCPU returns the user and system time of this process so far.
func clientCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot fail for the calling process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
