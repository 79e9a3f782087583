package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

// asynqJobs is an application with a queue and its handlers.
type asynqJobs struct {
	queue     string
	connect   asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector

	mutex sync.Mutex
	// ran has the times at which handlers of a type began.
	ran map[string][]time.Time
	// isRevived makes tasks of the type mortal succeed.
	isRevived atomic.Bool
}

func runAsynq() error {
	connect := asynq.RedisClientOpt{Addr: address}
	jobs := &asynqJobs{
		queue: name, connect: connect, client: asynq.NewClient(connect), inspector: asynq.NewInspector(connect),
		ran: map[string][]time.Time{},
	}
	defer jobs.client.Close()
	defer jobs.inspector.Close()
	err := all(jobs.serves, jobs.endsEarly, jobs.deletes)
	// The name of the queue is also in a set of all queues.
	if left := jobs.inspector.DeleteQueue(jobs.queue, true); err != nil && !errors.Is(left, asynq.ErrQueueNotFound) {
		err = errors.Join(err, left)
	}
	return err
}

func (j *asynqJobs) server(shutdown time.Duration) (*asynq.Server, error) {
	server := asynq.NewServer(j.connect, asynq.Config{
		Concurrency: 4, Queues: map[string]int{j.queue: 1}, LogLevel: asynq.FatalLevel, ShutdownTimeout: shutdown,
		TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
		RetryDelayFunc:   func(int, error, *asynq.Task) time.Duration { return 500 * time.Millisecond },
		GroupGracePeriod: time.Second, GroupMaxSize: 5,
		GroupAggregator: asynq.GroupAggregatorFunc(func(group string, tasks []*asynq.Task) *asynq.Task {
			var members []string
			for _, task := range tasks {
				members = append(members, string(task.Payload()))
			}
			slices.Sort(members)
			return asynq.NewTask("group", []byte(strings.Join(members, " ")), asynq.Queue(j.queue), asynq.Retention(time.Hour))
		}),
	})
	return server, server.Start(asynq.HandlerFunc(j.handle))
}

func (j *asynqJobs) handle(ctx context.Context, task *asynq.Task) error {
	j.mutex.Lock()
	j.ran[task.Type()] = append(j.ran[task.Type()], time.Now())
	j.mutex.Unlock()
	switch task.Type() {
	case "add":
		var numbers [2]int
		if err := json.Unmarshal(task.Payload(), &numbers); err != nil {
			return err
		}
		_, err := fmt.Fprint(task.ResultWriter(), numbers[0]+numbers[1])
		return err
	case "retried":
		if attempt, _ := asynq.GetRetryCount(ctx); attempt < 2 {
			return errAsItShould
		}
	case "mortal":
		if !j.isRevived.Load() {
			return errAsItShould
		}
	case "cancelled", "interrupted":
		if attempt, _ := asynq.GetRetryCount(ctx); attempt == 0 && !j.isRevived.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
	case "group":
		_, err := task.ResultWriter().Write(task.Payload())
		return err
	}
	return nil
}

func (j *asynqJobs) times(kind string) []time.Time {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return slices.Clone(j.ran[kind])
}

func (j *asynqJobs) enqueue(kind string, payload string, options ...asynq.Option) (*asynq.TaskInfo, error) {
	return j.client.Enqueue(asynq.NewTask(kind, []byte(payload)), append(options, asynq.Queue(j.queue))...)
}

// reaches waits until a task is in a state, and returns it.
func (j *asynqJobs) reaches(id string, state asynq.TaskState) (*asynq.TaskInfo, error) {
	var info *asynq.TaskInfo
	return info, until(fmt.Sprintf("task %s is %s", id, state), func() bool {
		found, err := j.inspector.GetTaskInfo(j.queue, id)
		info = found
		return err == nil && found.State == state
	})
}

func (j *asynqJobs) serves() error {
	server, err := j.server(0)
	if err != nil {
		return err
	}
	defer server.Shutdown()
	return all(j.results, j.schedules, j.retries, j.archives, j.unique, j.groups, j.cancels, j.periodic)
}

func (j *asynqJobs) results() error {
	for at := range 50 {
		id := fmt.Sprintf("add-%d", at)
		if _, err := j.enqueue("add", fmt.Sprintf("[%d, %d]", at, at), asynq.TaskID(id), asynq.Retention(time.Hour)); err != nil {
			return err
		}
	}
	for at := range 50 {
		info, err := j.reaches(fmt.Sprintf("add-%d", at), asynq.TaskStateCompleted)
		if err != nil {
			return err
		}
		if err := same("a result", string(info.Result), fmt.Sprint(2*at)); err != nil {
			return err
		}
	}
	return same("the number of executions", len(j.times("add")), 50)
}

func (j *asynqJobs) schedules() error {
	begin := time.Now()
	info, err := j.enqueue("timed", "", asynq.ProcessIn(1500*time.Millisecond), asynq.Retention(time.Hour))
	if err != nil {
		return err
	}
	if err := same("the state", info.State, asynq.TaskStateScheduled); err != nil {
		return err
	}
	if _, err = j.reaches(info.ID, asynq.TaskStateCompleted); err != nil {
		return err
	}
	// The library keeps the time of a schedule in whole seconds.
	if waited := j.times("timed")[0].Sub(begin); waited < 500*time.Millisecond {
		return same("the wait", waited, "at least 500 ms")
	}
	return same("the number of executions", len(j.times("timed")), 1)
}

func (j *asynqJobs) retries() error {
	info, err := j.enqueue("retried", "", asynq.MaxRetry(3), asynq.Retention(time.Hour))
	if err != nil {
		return err
	}
	done, err := j.reaches(info.ID, asynq.TaskStateCompleted)
	if err != nil {
		return err
	}
	return all(
		func() error { return same("the error", done.LastErr, errAsItShould.Error()) },
		func() error { return same("the number of retries", done.Retried, 2) },
		func() error { return same("the number of executions", len(j.times("retried")), 3) },
	)
}

func (j *asynqJobs) archives() error {
	info, err := j.enqueue("mortal", "", asynq.MaxRetry(0), asynq.Retention(time.Hour))
	if err != nil {
		return err
	}
	if _, err := j.reaches(info.ID, asynq.TaskStateArchived); err != nil {
		return err
	}
	archived, err := j.inspector.ListArchivedTasks(j.queue)
	if err != nil {
		return err
	}
	if err := same("the archived tasks", []string{archived[0].ID, archived[0].LastErr}, []string{info.ID, errAsItShould.Error()}); err != nil {
		return err
	}
	j.isRevived.Store(true)
	defer j.isRevived.Store(false)
	if err := j.inspector.RunTask(j.queue, info.ID); err != nil {
		return err
	}
	_, err = j.reaches(info.ID, asynq.TaskStateCompleted)
	return err
}

func (j *asynqJobs) unique() error {
	unique := []asynq.Option{asynq.Unique(time.Hour), asynq.ProcessIn(time.Hour), asynq.TaskID("unique")}
	if _, err := j.enqueue("unique", "one", unique...); err != nil {
		return err
	}
	if _, err := j.enqueue("unique", "one", asynq.Unique(time.Hour)); !errors.Is(err, asynq.ErrDuplicateTask) {
		return errors.Join(errors.New("a duplicate was not refused"), err)
	}
	if _, err := j.enqueue("unique", "two", asynq.TaskID("unique")); !errors.Is(err, asynq.ErrTaskIDConflict) {
		return errors.Join(errors.New("a second task with an ID was not refused"), err)
	}
	if err := j.inspector.DeleteTask(j.queue, "unique"); err != nil {
		return err
	}
	if err := j.inspector.DeleteTask(j.queue, "unique"); !errors.Is(err, asynq.ErrTaskNotFound) {
		return errors.Join(errors.New("a deleted task was deleted again"), err)
	}
	_, err := j.enqueue("unique", "one", asynq.Unique(time.Hour))
	return err
}

func (j *asynqJobs) groups() error {
	for at := range 5 {
		if _, err := j.enqueue("member", fmt.Sprint(at), asynq.Group("g")); err != nil {
			return err
		}
	}
	var result string
	if err := until("the group is one task", func() bool {
		completed, err := j.inspector.ListCompletedTasks(j.queue, asynq.PageSize(100))
		for _, task := range completed {
			if task.Type == "group" {
				result = string(task.Result)
			}
		}
		return err == nil && result != ""
	}); err != nil {
		return err
	}
	return same("the members", result, "0 1 2 3 4")
}

// cancels checks a message that is published to the server.
func (j *asynqJobs) cancels() error {
	info, err := j.enqueue("cancelled", "", asynq.MaxRetry(1), asynq.Retention(time.Hour))
	if err != nil {
		return err
	}
	if err := until("the task begins", func() bool { return len(j.times("cancelled")) == 1 }); err != nil {
		return err
	}
	if err := j.inspector.CancelProcessing(info.ID); err != nil {
		return err
	}
	done, err := j.reaches(info.ID, asynq.TaskStateCompleted)
	if err != nil {
		return err
	}
	return same("the error", done.LastErr, context.Canceled.Error())
}

func (j *asynqJobs) periodic() error {
	scheduler := asynq.NewScheduler(j.connect, &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel})
	if _, err := scheduler.Register("@every 1s", asynq.NewTask("periodic", nil), asynq.Queue(j.queue)); err != nil {
		return err
	}
	if err := scheduler.Start(); err != nil {
		return err
	}
	defer scheduler.Shutdown()
	return until("two periodic tasks", func() bool { return len(j.times("periodic")) >= 2 })
}

// endsEarly ends a server while it handles a task, which the next server finishes.
func (j *asynqJobs) endsEarly() error {
	first, err := j.server(100 * time.Millisecond)
	if err != nil {
		return err
	}
	info, err := j.enqueue("interrupted", "", asynq.Retention(time.Hour))
	if err != nil {
		first.Shutdown()
		return err
	}
	err = until("the task begins", func() bool { return len(j.times("interrupted")) == 1 })
	first.Shutdown()
	if err != nil {
		return err
	}
	if _, err := j.reaches(info.ID, asynq.TaskStatePending); err != nil {
		return err
	}
	j.isRevived.Store(true)
	second, err := j.server(0)
	if err != nil {
		return err
	}
	defer second.Shutdown()
	_, err = j.reaches(info.ID, asynq.TaskStateCompleted)
	return err
}

// deletes pauses the queue, checks its statistics and deletes it.
func (j *asynqJobs) deletes() error {
	if err := j.inspector.PauseQueue(j.queue); err != nil {
		return err
	}
	info, err := j.inspector.GetQueueInfo(j.queue)
	if err != nil {
		return err
	}
	isEmpty := info.Pending == 0 && info.Active == 0 && info.Scheduled == 0 && info.Retry == 0 && info.Archived == 0
	if !info.Paused || !isEmpty || info.MemoryUsage <= 0 {
		return fmt.Errorf("the queue is %+v", info)
	}
	// Two failures of the retried task, one of the archived one and one of the cancelled one. Completed: 50 additions,
	// and one of each other kind that is retained.
	found := []int{info.FailedTotal, info.Completed}
	if err := same("the failed and completed tasks", found, []int{4, 56}); err != nil {
		return err
	}
	if _, err := j.enqueue("pending", ""); err != nil {
		return err
	}
	if err := j.inspector.DeleteQueue(j.queue, false); !errors.Is(err, asynq.ErrQueueNotEmpty) {
		return errors.Join(errors.New("the deletion of a queue with a task was not refused"), err)
	}
	if count, err := j.inspector.DeleteAllPendingTasks(j.queue); err != nil || count != 1 {
		return errors.Join(errors.New("a pending task was not deleted"), err)
	}
	if err := j.inspector.DeleteQueue(j.queue, false); err != nil {
		return err
	}
	queues, err := j.inspector.Queues()
	if err != nil {
		return err
	}
	return same("the presence of the deleted queue", slices.Contains(queues, j.queue), false)
}
