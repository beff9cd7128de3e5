// A controller with informer and work queue under leader election.

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

const (
	// partLabel tells inputs and outputs of the controller from other ConfigMaps.
	partLabel = "part"
	// outputPrefix begins the name of the output of an input.
	outputPrefix = "copy-of-"
)

// runManager runs a controller under leader election as a manager of controller-runtime does, with the same packages and
// times. The manager prints `leading` and `stopped`, each with the time in nanoseconds. SIGTERM ends the manager in order; a
// lost Lease is a violation.
func runManager(config *rest.Config, identity string) {
	permitOnlyReconnects(config)
	client := kubernetes.NewForConfigOrDie(config)
	term, _ := signal.NotifyContext(background, syscall.SIGTERM)
	election, endElection := context.WithCancel(background)
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: identity})
	started, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		<-term.Done()
		select {
		case <-started:
			// The controller stops before the Lease is free for another manager.
			<-stopped
			report("stopped")
		default:
		}
		endElection()
	}()
	leaderelection.RunOrDie(election, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: "default", Name: "copies"},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity, EventRecorder: recorder},
		},
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				close(started)
				report("leading")
				newController(client, identity).run(term)
				close(stopped)
			},
			OnStoppedLeading: func() {},
		},
	})
	check(term.Err() != nil, "the manager lost the Lease")
	broadcaster.Shutdown()
}

// report prints an event of the manager with the time in nanoseconds.
func report(event string) { fmt.Println(event, time.Now().UnixNano()) }

// controller keeps an output with the data of each input. The garbage collector deletes the outputs of deleted inputs.
type controller struct {
	identity string
	client   typedv1.ConfigMapInterface
	factory  informers.SharedInformerFactory
	objects  listers.ConfigMapNamespaceLister
	queue    workqueue.TypedRateLimitingInterface[string]
}

func newController(client kubernetes.Interface, identity string) *controller {
	selected := informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.LabelSelector = partLabel + " in (input, output)"
	})
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"), selected)
	objects := factory.Core().V1().ConfigMaps()
	reportWatchErrors(objects.Informer())
	controller := &controller{
		identity: identity,
		client:   client.CoreV1().ConfigMaps("default"),
		factory:  factory,
		objects:  objects.Lister().ConfigMaps("default"),
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	must(objects.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    controller.enqueue,
		UpdateFunc: func(_, object any) { controller.enqueue(object) },
		DeleteFunc: controller.enqueue,
	}))
	return controller
}

// enqueue adds the name of an input, or of the owner of an output.
func (controller *controller) enqueue(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	changed := object.(*corev1.ConfigMap)
	name := changed.Name
	if owner := metav1.GetControllerOf(changed); owner != nil {
		name = owner.Name
	}
	controller.queue.Add(name)
}

// run reconciles with four workers until the end of the context.
func (controller *controller) run(ctx context.Context) {
	controller.factory.Start(ctx.Done())
	controller.factory.WaitForCacheSync(ctx.Done())
	var workers sync.WaitGroup
	for range 4 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for controller.reconcileNext() {
			}
		}()
	}
	<-ctx.Done()
	controller.queue.ShutDown()
	workers.Wait()
	controller.factory.Shutdown()
}

// reconcileNext reconciles one name of the queue. An error delays the name; the result is false at the end of the queue.
func (controller *controller) reconcileNext() bool {
	name, isOver := controller.queue.Get()
	if isOver {
		return false
	}
	defer controller.queue.Done(name)
	err := controller.reconcile(name)
	if err == nil {
		controller.queue.Forget(name)
		return true
	}
	isOutdated := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
	check(isOutdated || isReconnect(err), "reconcile of %s: %v", name, err)
	fmt.Fprintln(os.Stderr, "again:", name, err)
	controller.queue.AddRateLimited(name)
	return true
}

// reconcile creates or updates the output of an input.
func (controller *controller) reconcile(name string) error {
	input, err := controller.objects.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	succeed(err)
	owner := *metav1.NewControllerRef(input, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	output, err := controller.objects.Get(outputPrefix + name)
	if apierrors.IsNotFound(err) {
		output = &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name:            outputPrefix + name,
				Labels:          labels.Set{partLabel: "output"},
				Annotations:     map[string]string{"by": controller.identity},
				OwnerReferences: []metav1.OwnerReference{owner},
			},
			Data: input.Data,
		}
		_, err = controller.client.Create(background, output, creating)
		return err
	}
	succeed(err)
	if maps.Equal(output.Data, input.Data) && metav1.IsControlledBy(output, input) {
		return nil
	}
	output = output.DeepCopy()
	output.Data, output.OwnerReferences = input.Data, []metav1.OwnerReference{owner}
	output.Annotations = map[string]string{"by": controller.identity}
	_, err = controller.client.Update(background, output, updating)
	return err
}
