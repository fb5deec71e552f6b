/* The program of the pause image: it holds a pod's namespaces open, collects
 * the orphans of a shared process namespace, and ends when it is asked to. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int sig)
{
	(void)sig;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		continue;
}

static void leave(int sig)
{
	(void)sig;
	_exit(0);
}

int main(void)
{
	struct sigaction child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
	struct sigaction end = {.sa_handler = leave};

	if (sigaction(SIGCHLD, &child, NULL) || sigaction(SIGTERM, &end, NULL) ||
	    sigaction(SIGINT, &end, NULL))
		return EXIT_FAILURE;
	for (;;)
		pause();
}
