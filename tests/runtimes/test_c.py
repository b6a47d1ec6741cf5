"""C and C++ by gcc, with the tools that belong to them."""

from __future__ import annotations

from tests.hosting import LiveWarden
from tests.runtimes.programs import (
    built,
    compile_c,
    compile_cpp,
    ended,
    need,
    program,
    run,
    said,
)


def test_a_c_program_is_compiled_in_one_step_and_run_in_the_next(warden: LiveWarden) -> None:
    need("gcc")
    source = r"""
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    double sum = 0, each;
    while (scanf("%lf", &each) == 1)
        sum += each;
    printf("%.3f %s %s\n", sqrt(sum), words[count - 1], getenv("HOME"));
    return 7;
}
"""
    (result,) = built(
        warden, compile_c(source, "-lm"), program("./program", "last", stdin=b"1 2 3\n3")
    )
    assert ended(result) == ("completed", None, 7, None)
    assert (result.stdout, result.stderr) == (b"3.000 last /box\n", b"")


def test_a_c_program_with_a_syntax_error_gets_gccs_own_words_and_exit_code(
    warden: LiveWarden,
) -> None:
    need("gcc")
    build, never = run(
        warden,
        compile_c("int main(void) { return 1 }\n"),
        program("./program"),
        stop_on_failure=True,
    )
    assert ended(build) == ("completed", None, 1, None)
    assert b"main.c:1:26: error: expected" in build.stderr
    assert ended(never) == ("not_started", "earlier_step_failed", None, None)


def test_the_linkers_complaint_comes_back_as_well(warden: LiveWarden) -> None:
    need("gcc")
    (build,) = run(warden, compile_c("int absent(void); int main(void) { return absent(); }"))
    assert ended(build) == ("completed", None, 1, None)
    assert b"undefined reference to `absent'" in build.stderr


def test_threads_of_c_share_memory_and_a_mutex(warden: LiveWarden) -> None:
    need("gcc")
    source = r"""
#include <pthread.h>
#include <stdio.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long total;
static void *add(void *given) {
    for (int i = 0; i < 1000; i++) {
        pthread_mutex_lock(&lock);
        total += (long)given;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}
int main(void) {
    pthread_t threads[32];
    for (long i = 0; i < 32; i++)
        if (pthread_create(&threads[i], NULL, add, (void *)i)) return 1;
    for (int i = 0; i < 32; i++) pthread_join(threads[i], NULL);
    printf("%ld\n", total);
}
"""
    (result,) = built(warden, compile_c(source), program("./program"))
    assert said(result) == "496000\n"


def test_processes_pipes_signals_and_shared_memory_of_c_work_together(warden: LiveWarden) -> None:
    need("gcc")
    source = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t heard;
static void hear(int number) { heard = number; }
int main(void) {
    int *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ends[2];
    char word[8] = "";
    sigset_t set, before;
    signal(SIGUSR1, hear);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, &before);
    if (pipe(ends)) return 1;
    pid_t child = fork();
    if (child == 0) {
        *shared = 42;
        if (write(ends[1], "hello", 5) != 5) _exit(1);
        kill(getppid(), SIGUSR1);
        _exit(3);
    }
    if (read(ends[0], word, 5) != 5) return 2;
    while (!heard) sigsuspend(&before);
    int status;
    waitpid(child, &status, 0);
    printf("%s %d %d %d\n", word, *shared, heard == SIGUSR1, WEXITSTATUS(status));
    fflush(stdout);
    return system("echo from a shell; exit 5") >> 8;
}
"""
    (result,) = built(warden, compile_c(source), program("./program"))
    assert ended(result) == ("completed", None, 5, None)
    assert result.stdout == b"hello 42 1 3\nfrom a shell\n"


def test_threads_tasks_exceptions_and_streams_of_cpp_work_together(warden: LiveWarden) -> None:
    need("g++")
    source = r"""
#include <future>
#include <iostream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
int main() {
    std::string word;
    long sum = 0, each;
    std::cin >> word;
    while (std::cin >> each) sum += each;

    std::mutex lock;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back([&] { std::lock_guard<std::mutex> held(lock); sum += 100; });
    for (auto &thread : threads) thread.join();

    auto square = std::async(std::launch::async, [](int n) { return n * n; }, 12);
    auto fails = std::async(std::launch::async, []() -> int { throw std::runtime_error("own"); });
    std::ostringstream text;
    text << word << ' ' << sum << ' ' << square.get();
    try {
        fails.get();
    } catch (const std::exception &error) {
        text << ' ' << error.what();
    }
    std::cout << text.str() << std::endl;
}
"""
    (result,) = built(warden, compile_cpp(source), program("./program", stdin=b"sum 1 2 3"))
    assert said(result) == "sum 806 144 own\n"


def test_an_exception_of_cpp_that_nobody_catches_is_named_and_aborts(warden: LiveWarden) -> None:
    need("g++")
    source = '#include <stdexcept>\nint main() { throw std::logic_error("nobody"); }\n'
    (result,) = built(warden, compile_cpp(source), program("./program"))
    assert ended(result) == ("signaled", None, None, 6)
    assert b"what():  nobody" in result.stderr


def test_a_cpp_program_with_an_error_gets_the_compilers_own_words(warden: LiveWarden) -> None:
    need("g++")
    (build,) = run(warden, compile_cpp("int main() { std::cout << 1; }\n"))
    assert ended(build) == ("completed", None, 1, None)
    assert "error: \u2018cout\u2019 is not a member of" in build.stderr.decode()


def test_make_builds_several_files_side_by_side_and_only_what_changed(warden: LiveWarden) -> None:
    need("make", "gcc", "g++")
    files = {
        "Makefile": b"program: main.o part.o\n\tg++ -o $@ $^\n"
        b"%.o: %.c\n\tgcc -c -o $@ $<\n%.o: %.cpp\n\tg++ -c -o $@ $<\n",
        "main.cpp": b'#include <cstdio>\nextern "C" int part(int);\n'
        b'int main() { std::printf("%d\\n", part(20)); }\n',
        "part.c": b"int part(int given) { return 2 * given + 2; }\n",
    }
    again, result = built(
        warden,
        program("make", "-j2", files=files),
        program("make"),
        program("./program"),
    )
    assert said(again) == "make: 'program' is up to date.\n"
    assert said(result) == "42\n"


def test_a_failed_make_says_which_target_and_leaves_with_2(warden: LiveWarden) -> None:
    need("make", "gcc")
    files = {"Makefile": b"program: main.c\n\tgcc -o $@ $<\n", "main.c": b"not a program\n"}
    (result,) = run(warden, program("make", files=files))
    assert ended(result) == ("completed", None, 2, None)
    assert b"make: *** [Makefile:2: program] Error 1\n" in result.stderr


def test_static_and_shared_libraries_are_made_linked_and_loaded(warden: LiveWarden) -> None:
    need("gcc", "ar")
    main = r"""
#include <dlfcn.h>
#include <stdio.h>
int fixed(void);
int shared(void);
int main(void) {
    void *library = dlopen("./libloaded.so", RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    int (*loaded)(void) = (int (*)(void))dlsym(library, "loaded");
    printf("%d %d %d\n", fixed(), shared(), loaded());
}
"""
    build = """
set -e
gcc -c fixed.c && ar rcs libfixed.a fixed.o
gcc -shared -fPIC -o libshared.so shared.c
gcc -shared -fPIC -o libloaded.so loaded.c
gcc -o program main.c -L. -lfixed -lshared -ldl -Wl,-rpath,'$ORIGIN'
"""
    files = {
        "fixed.c": b"int fixed(void) { return 1; }\n",
        "shared.c": b"int shared(void) { return 2; }\n",
        "loaded.c": b"int loaded(void) { return 3; }\n",
        "main.c": main.encode(),
    }
    (result,) = built(warden, program("sh", "-c", build, files=files), program("./program"))
    assert said(result) == "1 2 3\n"


def test_the_address_sanitizer_names_an_overflow_and_wants_no_leak_check(
    warden: LiveWarden,
) -> None:
    """Its search for leaks traces the program, which no task may: it must be switched off."""
    need("gcc")
    source = r"""
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    (void)words;
    volatile char *block = malloc(4);
    block[2 + count] = 1;
    puts("sound");
    free((void *)block);
}
"""
    build = compile_c(source, "-g", "-fsanitize=address")
    quiet = {"ASAN_OPTIONS": "detect_leaks=0"}
    sound, broken, leaks = built(
        warden,
        build,
        program("./program", env=quiet),
        program("./program", "more", env=quiet),
        program("./program"),
    )
    assert said(sound) == "sound\n"
    assert ended(broken) == ("completed", None, 1, None)
    assert b"heap-buffer-overflow" in broken.stderr
    assert b"main.c:7" in broken.stderr
    assert (leaks.outcome, leaks.exit_code) == ("completed", 1)
    assert b"LeakSanitizer does not work under ptrace" in leaks.stderr
