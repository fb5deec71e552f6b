package podsync

import (
	"context"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/podsync/internal/objects"
)

// serviceEnv are the environment variables that tell containers of Services, kept by a watch.
type serviceEnv struct {
	*objects.Services
	factory informers.SharedInformerFactory
}

// newServiceEnv returns what tells of no Service when there is no apiserver.
func newServiceEnv(client kubernetes.Interface, standalone bool) *serviceEnv {
	factory := informers.NewSharedInformerFactory(client, 0)
	if standalone {
		return &serviceEnv{Services: objects.NewServices(nil, nil), factory: factory}
	}
	i := factory.Core().V1().Services()
	return &serviceEnv{Services: objects.NewServices(i.Lister(), i.Informer().HasSynced), factory: factory}
}

func (e *serviceEnv) run(ctx context.Context) error {
	e.factory.StartWithContext(ctx)
	<-ctx.Done()
	e.factory.Shutdown()
	return nil
}
